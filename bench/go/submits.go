package main

import (
	"runtime"
	"sync"
	"time"
)

// submitters is the number of threads that submit in submit_16.
const submitters = 16

// startSubmit lets goroutines that are locked to their threads start short ones. Go has no threads
// that are not its own.
func startSubmit(p params) (round, error) {
	return func() ([]sample, error) {
		return []sample{{"time", submitNs(p.n), "ns"}}, nil
	}, nil
}

// submitNs measures from the moment at which all submitters may begin until the last goroutine has
// run. The submitters and their threads exist before that.
func submitNs(count int) float64 {
	var ready, arrivals sync.WaitGroup
	ready.Add(submitters)
	arrivals.Add(count)
	gate := make(chan struct{})
	for nth := range submitters {
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			ready.Done()
			<-gate
			for range share(count, nth) {
				go arrivals.Done()
			}
		}()
	}
	ready.Wait()
	start := time.Now()
	close(gate)
	arrivals.Wait()
	return nsEach(start, count)
}

// share is the share of one submitter; the first ones take what is left over.
func share(count, nth int) int {
	if nth < count%submitters {
		return count/submitters + 1
	}
	return count / submitters
}
