package main

import (
	"errors"
	"runtime"
	"syscall"
	"time"
)

const (
	// pause is how long the waker sleeps after each wake-up.
	pause = 200 * time.Microsecond
	// wakePatience: a sleeper that has not answered after this long never will.
	wakePatience = 10 * time.Second
)

// startForeignWake wakes a goroutine while everything sleeps. Go has no threads but its own. So the
// waker is a goroutine that has a thread for itself and sleeps in the kernel, which comes closest.
func startForeignWake(p params) (round, error) {
	return func() ([]sample, error) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		bell := make(chan time.Time)
		heard := make(chan float64, 1)
		go func() {
			for rung := range bell {
				heard <- float64(time.Since(rung).Nanoseconds()) / 1e3
			}
		}()
		defer close(bell)
		times := make([]float64, 0, p.n)
		nap(pause)
		for range p.n {
			us, err := ring(bell, heard)
			if err != nil {
				return nil, err
			}
			times = append(times, us)
			// The other ports wake a plain thread now, while their sleeper rests. So it rests as long here.
			nap(pause)
		}
		return []sample{{"time", median(times), "us"}}, nil
	}, nil
}

// ring wakes the sleeper and returns the latency in microseconds.
func ring(bell chan<- time.Time, heard <-chan float64) (float64, error) {
	rung := time.Now()
	bell <- rung
	for time.Since(rung) < wakePatience {
		nap(pause)
		select {
		case us := <-heard:
			return us, nil
		default:
		}
	}
	return 0, errors.New("a wake-up was lost: no answer after 10s")
}

// nap blocks the thread in the kernel for this long; a signal does not shorten it.
func nap(span time.Duration) {
	left := syscall.NsecToTimespec(span.Nanoseconds())
	for syscall.Nanosleep(&left, &left) == syscall.EINTR {
	}
}
