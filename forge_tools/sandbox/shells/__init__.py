"""Shells that outlive the call that started them: a supervisor for each, and a folder through which all communicate."""
