"""The whole experiment from one recipe; claims; tables; figures; the report; the demo."""
