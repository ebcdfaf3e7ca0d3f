"""The ledger: a durable record of who held which part of which card, and bills made from it."""
