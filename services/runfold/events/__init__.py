"""The contract on the wire: `types` the events, `codec` their Avro bytes, `envelope` the headers every reader needs."""
