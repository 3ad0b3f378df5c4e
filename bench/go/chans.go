package main

import (
	"fmt"
	"runtime"
	"sync"
	"time"
)

const (
	// capacity is the capacity of the channels of chan_spsc and chan_mpmc.
	capacity = 128
	// selectBatch is the number of selects between two fillings, and the capacity of each channel:
	// every select finds all of its channels ready.
	selectBatch = 256
)

// startPingpong1w runs on one P, whatever procs is.
func startPingpong1w(p params) (round, error) {
	runtime.GOMAXPROCS(1)
	return startPingpong(p)
}

func startPingpong(p params) (round, error) {
	return func() ([]sample, error) {
		each, err := roundTrips(p.n, 0)
		return []sample{{"time", each, "ns"}}, err
	}, nil
}

// startMpscTrips has room for the one message that is under way, so that no send waits.
func startMpscTrips(p params) (round, error) {
	return func() ([]sample, error) {
		before, err := ownCPU()
		if err != nil {
			return nil, err
		}
		each, err := roundTrips(p.n, 1)
		if err != nil {
			return nil, err
		}
		after, err := ownCPU()
		cpu := float64((after - before).Nanoseconds()) / float64(p.n)
		return []sample{{"time", each, "ns"}, {"cpu", cpu, "ns"}}, err
	}, nil
}

// roundTrips sends numbers to another goroutine, which sends them back. It returns the time of
// each in nanoseconds.
func roundTrips(trips, room int) (float64, error) {
	ping, pong := make(chan int, room), make(chan int, room)
	go func() {
		for ball := range ping {
			pong <- ball
		}
		close(pong)
	}()
	start := time.Now()
	for trip := range trips {
		ping <- trip
		if ball := <-pong; ball != trip {
			return 0, fmt.Errorf("sent %d, got %d back", trip, ball)
		}
	}
	each := nsEach(start, trips)
	close(ping)
	<-pong
	return each, nil
}

func startSpsc(p params) (round, error) { return startStream(p.n, 1) }
func startMpmc(p params) (round, error) { return startStream(p.n, 4) }

// startStream sends numbers through one channel, from `tasks` senders to as many receivers.
func startStream(messages, tasks int) (round, error) {
	return func() ([]sample, error) {
		stream := make(chan uint64, capacity)
		sums := make(chan uint64, tasks)
		var senders sync.WaitGroup
		senders.Add(tasks)
		start := time.Now()
		for range tasks {
			go func() {
				sum := uint64(0)
				for message := range stream {
					sum += message
				}
				sums <- sum
			}()
		}
		for task := range tasks {
			go func() {
				for message := task; message < messages; message += tasks {
					stream <- uint64(message)
				}
				senders.Done()
			}()
		}
		senders.Wait()
		close(stream)
		sum := uint64(0)
		for range tasks {
			sum += <-sums
		}
		each := nsEach(start, messages)
		return checked(sum, messages, each)
	}, nil
}

// checked returns the figure of a stream whose messages add up.
func checked(sum uint64, messages int, each float64) ([]sample, error) {
	n := uint64(messages)
	if sum != n*(n-1)/2 {
		return nil, fmt.Errorf("a message was lost: the sum is %d", sum)
	}
	return []sample{{"time", each, "ns"}}, nil
}

// startUnbounded sends through a queue, because all of Go's channels are bounded.
func startUnbounded(p params) (round, error) {
	return func() ([]sample, error) {
		stream := newQueue()
		sums := make(chan uint64, 1)
		start := time.Now()
		go func() {
			sum := uint64(0)
			for message, ok := stream.receive(); ok; message, ok = stream.receive() {
				sum += message
			}
			sums <- sum
		}()
		go func() {
			for message := range p.n {
				stream.send(uint64(message))
			}
			stream.end()
		}()
		sum := <-sums
		return checked(sum, p.n, nsEach(start, p.n))
	}, nil
}

// queue is unbounded and has one receiver, which takes all messages at once and returns them one by
// one.
type queue struct {
	lock    sync.Mutex
	changed sync.Cond
	sent    []uint64
	ended   bool
	// The messages that the receiver has taken, and how many of them it has returned.
	taken []uint64
	next  int
}

func newQueue() *queue {
	q := &queue{}
	q.changed.L = &q.lock
	return q
}

func (q *queue) send(message uint64) {
	q.lock.Lock()
	q.sent = append(q.sent, message)
	q.lock.Unlock()
	q.changed.Signal()
}

// end marks the end, after the last message.
func (q *queue) end() {
	q.lock.Lock()
	q.ended = true
	q.lock.Unlock()
	q.changed.Signal()
}

// receive waits for a message; false: there are no more.
func (q *queue) receive() (uint64, bool) {
	if q.next == len(q.taken) && !q.take() {
		return 0, false
	}
	message := q.taken[q.next]
	q.next++
	return message, true
}

// take exchanges the used messages for the sent ones.
func (q *queue) take() bool {
	q.lock.Lock()
	defer q.lock.Unlock()
	for len(q.sent) == 0 {
		if q.ended {
			return false
		}
		q.changed.Wait()
	}
	q.taken, q.sent, q.next = q.sent, q.taken[:0], 0
	return true
}

func startSelect2(p params) (round, error) {
	return startSelect(p.n, 2, func(c []chan int) int {
		select {
		case channel := <-c[0]:
			return channel
		case channel := <-c[1]:
			return channel
		}
	})
}

func startSelect8(p params) (round, error) {
	return startSelect(p.n, 8, func(c []chan int) int {
		c = c[:8:8]
		select {
		case channel := <-c[0]:
			return channel
		case channel := <-c[1]:
			return channel
		case channel := <-c[2]:
			return channel
		case channel := <-c[3]:
			return channel
		case channel := <-c[4]:
			return channel
		case channel := <-c[5]:
			return channel
		case channel := <-c[6]:
			return channel
		case channel := <-c[7]:
			return channel
		}
	})
}

// startSelect measures selects over channels that all have a message, which is the channel's
// number. Filling them is not timed.
func startSelect(selects, channels int, choose func([]chan int) int) (round, error) {
	return func() ([]sample, error) {
		all := make([]chan int, channels)
		left := make([]int, channels)
		for channel := range all {
			all[channel] = make(chan int, selectBatch)
		}
		spent := time.Duration(0)
		for done := 0; done < selects; done += selectBatch {
			for channel := range all {
				for ; left[channel] < selectBatch; left[channel]++ {
					all[channel] <- channel
				}
			}
			start := time.Now()
			for range min(selectBatch, selects-done) {
				left[choose(all)]--
			}
			spent += time.Since(start)
		}
		each := float64(spent.Nanoseconds()) / float64(selects)
		return []sample{{"time", each, "ns"}}, nil
	}, nil
}
