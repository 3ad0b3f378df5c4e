package main

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// quietGoroutines are parked beside the sleeping one of idle_cpu.
	quietGoroutines = 100_000
	// quietMargin is how much longer idle_cpu sleeps at either end than the measured time.
	quietMargin = 500 * time.Millisecond
	// stops is how often a round of stw changes the number of Ps; even, so that every round starts at
	// the same number.
	stops = 200
)

// crowd is a set of goroutines that are parked until all are woken, each by a channel of its own.
type crowd struct {
	gates    []chan struct{}
	finished sync.WaitGroup
}

// park starts goroutines and returns when each has come to its gate.
func park(count int) *crowd {
	c := &crowd{gates: make([]chan struct{}, count)}
	var parked sync.WaitGroup
	parked.Add(count)
	c.finished.Add(count)
	for nth := range c.gates {
		gate := make(chan struct{})
		c.gates[nth] = gate
		go func() {
			parked.Done()
			<-gate
			c.finished.Done()
		}()
	}
	parked.Wait()
	return c
}

// wakeAll wakes one after the other and returns when all have ended.
func (c *crowd) wakeAll() {
	for _, gate := range c.gates {
		gate <- struct{}{}
	}
	c.finished.Wait()
}

// startIdle measures memory and time of parked goroutines; for one round in a process.
func startIdle(p params) (round, error) {
	return func() ([]sample, error) {
		before, err := ownMemory()
		if err != nil {
			return nil, err
		}
		start := time.Now()
		crowd := park(p.n)
		parkNs := nsEach(start, p.n)
		after, err := ownMemory()
		if err != nil {
			return nil, err
		}
		start = time.Now()
		crowd.wakeAll()
		wakeNs := nsEach(start, p.n)
		return []sample{
			{"memory", max(0, after-before) / float64(p.n), "bytes"},
			{"park_time", parkNs, "ns"},
			{"wake_time", wakeNs, "ns"},
		}, nil
	}, nil
}

// startQuiet parks the others before it is ready. A round is a sleep, in which the driver measures
// this process from outside.
func startQuiet(p params) (round, error) {
	crowd := park(quietGoroutines)
	return func() ([]sample, error) {
		time.Sleep(time.Duration(p.n)*time.Second + 2*quietMargin)
		runtime.KeepAlive(crowd)
		return nil, nil
	}, nil
}

// startStw changes the number of Ps to and fro, with parked goroutines standing by from the first
// round to the last.
func startStw(p params) (round, error) {
	crowd := park(p.n)
	return func() ([]sample, error) {
		times := make([]float64, 0, stops)
		for stop := range stops {
			wanted := p.procs + 1 - stop%2
			start := time.Now()
			runtime.GOMAXPROCS(wanted)
			times = append(times, nsEach(start, 1)/1e3)
		}
		runtime.KeepAlive(crowd)
		return []sample{
			{"time", median(times), "us"},
			{"time_max", slices.Max(times), "us"},
		}, nil
	}, nil
}

// startResizeChain lets two goroutines change the number of Ps beside a chain of goroutines, each
// of which starts its successor and ends.
func startResizeChain(p params) (round, error) {
	return func() ([]sample, error) {
		var over atomic.Bool
		var respawn func()
		respawn = func() {
			if !over.Load() {
				go respawn()
			}
		}
		go respawn()
		start := time.Now()
		var resizers sync.WaitGroup
		for _, numbers := range [][]int{{2, 3}, {3, 1}} {
			resizers.Add(1)
			go func() {
				defer resizers.Done()
				for range p.n {
					for _, procs := range numbers {
						runtime.GOMAXPROCS(procs)
					}
				}
			}()
		}
		resizers.Wait()
		timeMs := nsEach(start, 1) / 1e6
		over.Store(true)
		runtime.GOMAXPROCS(p.procs)
		return []sample{{"time", timeMs, "ms"}}, nil
	}, nil
}
