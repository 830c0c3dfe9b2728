// Command load writes a topic as an upstream that repeats itself, or checks a topic for what ftproxy made of it. It is
// the two ends of docker-compose.yml.
//
//	load produce -brokers kafka:9092 -in orders
//	load check -brokers kafka:9092 -out enriched
package main
