package main

import (
	"fmt"
	"sync"
	"time"
)

// lockers is the number of goroutines that want the lock.
const lockers = 8

func startMutex(p params) (round, error) {
	return func() ([]sample, error) {
		contended, err := contendedNs(p.n)
		if err != nil {
			return nil, err
		}
		return []sample{
			{"time", contended, "ns"},
			{"uncontended_time", aloneNs(lockers * p.n), "ns"},
		}, nil
	}, nil
}

// counter is a number under a lock.
type counter struct {
	lock  sync.Mutex
	value int
}

func (c *counter) count() {
	c.lock.Lock()
	c.value++
	c.lock.Unlock()
}

// contendedNs lets all goroutines count at once, from before the first starts until the last has
// ended.
func contendedNs(times int) (float64, error) {
	var running sync.WaitGroup
	running.Add(lockers)
	c := new(counter)
	start := time.Now()
	for range lockers {
		go func() {
			for range times {
				c.count()
			}
			running.Done()
		}()
	}
	running.Wait()
	each := nsEach(start, lockers*times)
	if c.value != lockers*times {
		return 0, fmt.Errorf("two held the lock at once: counted %d", c.value)
	}
	return each, nil
}

// aloneNs lets the calling goroutine count alone.
func aloneNs(times int) float64 {
	c := new(counter)
	start := time.Now()
	for range times {
		c.count()
	}
	return nsEach(start, times)
}
