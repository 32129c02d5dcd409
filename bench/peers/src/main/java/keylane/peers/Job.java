package keylane.peers;

/** What is to be measured. */
record Job(String bootstrap, String topic, int handlerMs, int concurrency, int warmUpSeconds, int seconds) {}
