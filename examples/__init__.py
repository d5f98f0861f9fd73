"""What is worth a look beside the product: run from a checkout."""
