import asyncio, os, signal, time, pytest
from collections.abc import Iterator
from pathlib import Path
from tests.shell_hosts import processes_of, until
from tests.unit.tools.shell_session import Book, Session, session
from forge_tools.sandbox.shells.keeping import find, survey
from forge_tools.sandbox.shells.starting import KEEPER
@pytest.fixture
def calls(tmp_path):
    with session(tmp_path, Book()) as made: yield made
@pytest.mark.parametrize("since",[2**40,2**62,2**63-1,2**63,2**64,10**40])
async def test_since(calls,since):
    h=await calls.start("echo one; sleep 61")
    r=await calls.output(h,since=since,wait_ms=50); print(since,r.success,(r.output or '')[:200],r.error)
    r=await calls.output(h); print("   then",(r.output or '')[:200],r.error)
    await calls.kill(h)
@pytest.mark.parametrize("p",["a\nb","a\\nb","(","(a+)+$","^(a+)+\\1$","(?i)TWO","x{1000}{1000}{1000}","\\p{Foo}","[[:alpha:]]+$","\0","$","^$","(?=b)b", " ", "--help","-f/etc/passwd"])
async def test_pat(calls,p):
    h=await calls.start("printf 'a\\nb\\ntwo\\n\\n'; head -c 3000 /dev/zero | tr '\\0' a; echo b")
    await calls.ended(h)
    t=time.monotonic(); r=await calls.output(h,filter=p); print(repr(p),r.success,repr((r.output or '')[-90:]),r.error,r.metadata.get('error_code') , round(time.monotonic()-t,2))
    t=time.monotonic(); r=await calls.output(h,wait_for=p); print('   wait',r.success,repr(r.metadata.get('matched_line'))[:40],r.error, round(time.monotonic()-t,2))
async def test_stopped_supervisor(calls):
    h=await calls.start("sleep 61")
    with find(calls.folder if hasattr(calls,'folder') else None,h) if hasattr(calls,'folder') else __import__('contextlib').nullcontext() as s: pass
    import glob
    import json
    pid=[int(p.split('/')[2]) for p in glob.glob('/proc/[0-9]*/status') if False]
    child=processes_of({h})[0]
    sup=int(open(f'/proc/{child}/stat').read().rpartition(')')[2].split()[1])
    os.kill(sup,signal.SIGSTOP)
    t=time.monotonic(); r=await calls.kill(h,grace_ms=500); print(r.success,r.output,r.error,time.monotonic()-t)
    r=await calls.list() if hasattr(calls,'list') else None; print(r and r.output)
    os.kill(sup,signal.SIGCONT); until(lambda: not processes_of({h}))
async def test_fast(calls):
    h=await calls.start("yes 0123456789012345678901234567890123456789 & sleep 6; echo; echo DONE-XYZ; kill %1; wait")
    for k in range(4):
        t=time.monotonic();c=time.process_time(); r=await calls.output(h,wait_for="DONE-[XY]Z",wait_ms=2000); print(r.success,r.metadata.get('matched'),r.metadata.get('size'),r.metadata.get('dropped_bytes'),'wall',time.monotonic()-t,'cpu',time.process_time()-c, r.error)
    await calls.kill(h)
