"""Import from and export to other toolkits."""
