"""One module per vendor: its resource names, annotations and rules, as a ``Vendor`` record. Pure."""
