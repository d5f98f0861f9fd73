"""What tools may reach of the web, and how it is fetched."""
