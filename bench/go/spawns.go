package main

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"time"
)

const (
	// spawnBatch is the number of goroutines alive at once in spawn.
	spawnBatch = 1_000
	// fibSerialMax is the largest argument that fib computes without a goroutine.
	fibSerialMax = 15
	// fibRepeats is how often a round computes fib(n).
	fibRepeats = 10
)

// startYield runs on one P, whatever procs is: with two, the goroutines would not meet.
func startYield(p params) (round, error) {
	runtime.GOMAXPROCS(1)
	return func() ([]sample, error) {
		var pair sync.WaitGroup
		pair.Add(2)
		start := time.Now()
		for range 2 {
			go func() {
				for range p.n {
					runtime.Gosched()
				}
				pair.Done()
			}()
		}
		pair.Wait()
		return []sample{{"time", nsEach(start, 2*p.n), "ns"}}, nil
	}, nil
}

func startSpawn(p params) (round, error) {
	return func() ([]sample, error) {
		return []sample{
			{"time", spawnNs(p.n, spawnBatch), "ns"},
			{"go_time", goNs(p.n, spawnBatch), "ns"},
		}, nil
	}, nil
}

func startSpawnBurst(p params) (round, error) {
	return func() ([]sample, error) {
		return []sample{{"time", spawnNs(p.n, p.n), "ns"}}, nil
	}, nil
}

func startGoBurst(p params) (round, error) {
	return func() ([]sample, error) {
		return []sample{{"time", goNs(p.n, p.n), "ns"}}, nil
	}, nil
}

// spawnNs waits for each goroutine through a handle of its own: a channel with room for its result.
func spawnNs(count, batch int) float64 {
	handles := make([]chan struct{}, 0, batch)
	start := time.Now()
	for done := 0; done < count; done += batch {
		for range min(batch, count-done) {
			handle := make(chan struct{}, 1)
			go func() { handle <- struct{}{} }()
			handles = append(handles, handle)
		}
		for _, handle := range handles {
			<-handle
		}
		handles = handles[:0]
	}
	return nsEach(start, count)
}

// goNs waits for each batch with one WaitGroup.
func goNs(count, batch int) float64 {
	var running sync.WaitGroup
	start := time.Now()
	for done := 0; done < count; done += batch {
		size := min(batch, count-done)
		running.Add(size)
		for range size {
			go running.Done()
		}
		running.Wait()
	}
	return nsEach(start, count)
}

func startFib(p params) (round, error) {
	expected, err := fibByAdding(p.n)
	if err != nil {
		return nil, err
	}
	return func() ([]sample, error) {
		start := time.Now()
		for range fibRepeats {
			if found := fib(p.n); found != expected {
				return nil, fmt.Errorf("fib(%d) is %d, not %d", p.n, expected, found)
			}
		}
		return []sample{{"time", nsEach(start, fibRepeats) / 1e6, "ms"}}, nil
	}, nil
}

// fib gives one half of the work to a new goroutine and keeps the other, above the limit.
func fib(n int) uint64 {
	if n <= fibSerialMax {
		return fibSerial(n)
	}
	half := make(chan uint64, 1)
	go func() { half <- fib(n - 1) }()
	other := fib(n - 2)
	return <-half + other
}

// fibSerial is the work below the limit: plain calls.
func fibSerial(n int) uint64 {
	if n < 2 {
		return uint64(n)
	}
	return fibSerial(n-1) + fibSerial(n-2)
}

// fibByAdding is the right answer, to compare with.
func fibByAdding(n int) (uint64, error) {
	this, next := uint64(0), uint64(1)
	for range n {
		if this > math.MaxUint64-next {
			return 0, errors.New("n is too large")
		}
		this, next = next, this+next
	}
	return this, nil
}
