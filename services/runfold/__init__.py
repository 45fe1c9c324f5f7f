"""Runfold runs LLM agents durably: one Kafka topic is the truth, stateless executors carry the runs."""
