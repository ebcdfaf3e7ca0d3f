"""The wire: annotations, quantities, events and subjects of the HAMi protocol. Pure: no I/O, no clock.

Every text or message that two of our services, or ours and the reference's, exchange is encoded and decoded here and nowhere else.
What cannot be read raises a ``ProtocolError``; it never counts as zero.
"""
