"""What tools may reach on the web, and how it is fetched."""
