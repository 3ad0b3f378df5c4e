package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

const (
	// talkers is the number of connections of std_echo, with a goroutine at each end.
	talkers = 1_000
	// messageSize is the length of its messages.
	messageSize = 64
)

// startEchoWithClients runs the server from the first round to the last.
func startEchoWithClients(p params) (round, error) {
	port, err := serveEcho()
	if err != nil {
		return nil, err
	}
	count := min(talkers, p.n)
	times := (p.n + count - 1) / count
	return func() ([]sample, error) { return talkToAll(port, count, times) }, nil
}

// talkToAll starts a goroutine for each client. The connections are made before the clock starts.
func talkToAll(port, count, times int) ([]sample, error) {
	streams := make([]net.Conn, count)
	for nth := range streams {
		stream, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return nil, err
		}
		defer stream.Close()
		streams[nth] = stream
	}
	before, err := ownCPU()
	if err != nil {
		return nil, err
	}
	start := time.Now()
	results := make(chan error, count)
	for _, stream := range streams {
		go func() { results <- talk(stream, times) }()
	}
	for range streams {
		err = errors.Join(err, <-results)
	}
	elapsed := time.Since(start)
	after, failed := ownCPU()
	each := func(span time.Duration) float64 {
		return float64(span.Nanoseconds()) / 1e3 / float64(count*times)
	}
	return []sample{
		{"time", each(elapsed), "us"},
		{"cpu", each(after - before), "us"},
	}, errors.Join(err, failed)
}

// talk is a client: its messages come back one after the other.
func talk(stream net.Conn, times int) error {
	message, answer := make([]byte, messageSize), make([]byte, messageSize)
	for nth := range times {
		message[0] = byte(nth)
		if _, err := stream.Write(message); err != nil {
			return err
		}
		if _, err := io.ReadFull(stream, answer); err != nil {
			return err
		}
		if !bytes.Equal(message, answer) {
			return errors.New("the answer is another message")
		}
	}
	return nil
}
