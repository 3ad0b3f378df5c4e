package main

import (
	"errors"
	"slices"
	"sync"
	"time"
)

const (
	// sleeps is the number of sleeps of each goroutine.
	sleeps = 5
	// The shortest sleep, and the difference to the longest.
	spanMin  = time.Millisecond
	spanRoom = 49 * time.Millisecond
	// spanFar is longer than any run.
	spanFar = time.Hour
)

func startTimers(p params) (round, error) {
	return func() ([]sample, error) {
		late := touched(p.n * sleeps)
		before, err := ownCPU()
		if err != nil {
			return nil, err
		}
		start := time.Now()
		oversleep(p.n, late)
		each := nsEach(start, 1)
		after, err := ownCPU()
		if err != nil {
			return nil, err
		}
		slices.Sort(late)
		if late[0] < 0 {
			return nil, errors.New("a goroutine woke up too early")
		}
		return []sample{
			{"time", each / 1e6, "ms"},
			{"cpu", float64((after - before).Nanoseconds()) / 1e6, "ms"},
			{"late_p50", quantile(late, 0.5), "us"},
			{"late_p99", quantile(late, 0.99), "us"},
		}, nil
	}, nil
}

// touched makes a slice whose pages exist, as those of the other ports do.
func touched(size int) []float64 {
	slots := make([]float64, size)
	for nth := range slots {
		slots[nth] = -1
	}
	return slots
}

// oversleep lets goroutines sleep and notes in microseconds how late each sleep ended.
func oversleep(sleepers int, late []float64) {
	var running sync.WaitGroup
	running.Add(sleepers)
	for sleeper := range sleepers {
		go func() {
			for nth := range sleeps {
				span := span(sleeper, nth)
				start := time.Now()
				time.Sleep(span)
				late[sleeper*sleeps+nth] = float64((time.Since(start) - span).Nanoseconds()) / 1e3
			}
			running.Done()
		}()
	}
	running.Wait()
}

// startReset sets one timer to a moment that never comes; it has been stopped each time before.
func startReset(p params) (round, error) {
	return func() ([]sample, error) {
		timer := time.NewTimer(spanFar)
		timer.Stop()
		start := time.Now()
		for range p.n {
			if timer.Reset(spanFar) {
				return nil, errors.New("the timer was set before")
			}
			if !timer.Stop() {
				return nil, errors.New("the timer was not set")
			}
		}
		return []sample{{"time", nsEach(start, p.n), "ns"}}, nil
	}, nil
}

// span is the duration of a sleep: pseudorandom whole microseconds, the same in every round of
// every port.
func span(sleeper, nth int) time.Duration {
	room := uint64(spanRoom.Microseconds()) + 1
	us := scramble(uint64(sleeper*sleeps+nth)) % room
	return spanMin + time.Duration(us)*time.Microsecond
}

// scramble returns a number that depends on every bit of another one (SplitMix64's last steps).
func scramble(number uint64) uint64 {
	x := (number + 1) * 0x9e37_79b9_7f4a_7c15
	x = (x ^ x>>30) * 0xbf58_476d_1ce4_e5b9
	x = (x ^ x>>27) * 0x94d0_49bb_1331_11eb
	return x ^ x>>31
}
