package main

import (
	"fmt"
	"math"
	"sync/atomic"
	"time"
)

// children is the number of children of each node of skynet's tree.
const children = 10

func startSkynet(p params) (round, error) {
	if !isFullTree(p.n) || p.n > math.MaxUint32 {
		return nil, fmt.Errorf("n must be a power of %d", children)
	}
	leaves := uint64(p.n)
	expected := leaves * (leaves - 1) / 2
	return func() ([]sample, error) {
		start := time.Now()
		root := make(chan uint64)
		go skynet(root, 0, leaves)
		sum := <-root
		each := nsEach(start, 1)
		if sum != expected {
			return nil, fmt.Errorf("the sum of the leaves is %d, not %d", expected, sum)
		}
		return []sample{{"time", each / 1e6, "ms"}}, nil
	}, nil
}

// isFullTree returns whether a tree with this many leaves has all children at every node.
func isFullTree(leaves int) bool {
	for leaves > 1 && leaves%children == 0 {
		leaves /= children
	}
	return leaves == 1
}

// skynet is a node: it sends the sum of the leaves from first on to its parent.
func skynet(parent chan<- uint64, first, leaves uint64) {
	if leaves == 1 {
		parent <- first
		return
	}
	sums := make(chan uint64)
	share := leaves / children
	for nth := range uint64(children) {
		go skynet(sums, first+nth*share, share)
	}
	sum := uint64(0)
	for range children {
		sum += <-sums
	}
	parent <- sum
}

func startSieve(p params) (round, error) {
	expected := nthPrime(p.n)
	return func() ([]sample, error) {
		last, each := sieve(p.n)
		if last != expected {
			return nil, fmt.Errorf("prime number %d is %d, not %d", p.n, expected, last)
		}
		return []sample{{"time", each / 1e6, "ms"}}, nil
	}, nil
}

// sieve returns the last of `primes` primes and the time until it is known. The end of the chain is
// awaited and not counted: the first goroutine stops, and the close of its channel passes through
// all of them.
func sieve(primes int) (uint64, float64) {
	var stop atomic.Bool
	start := time.Now()
	first := make(chan uint64)
	go func() {
		for number := uint64(2); !stop.Load(); number++ {
			first <- number
		}
		close(first)
	}()
	numbers, prime := first, uint64(0)
	for range primes {
		prime = <-numbers
		rest := make(chan uint64)
		go sift(prime, numbers, rest)
		numbers = rest
	}
	each := nsEach(start, 1)
	stop.Store(true)
	for range numbers {
	}
	return prime, each
}

// sift is a link of the chain: it passes on numbers that are no multiple of its prime.
func sift(prime uint64, numbers <-chan uint64, rest chan<- uint64) {
	for number := range numbers {
		if number%prime != 0 {
			rest <- number
		}
	}
	close(rest)
}

// nthPrime is the right answer, to compare with.
func nthPrime(n int) uint64 {
	primes := make([]uint64, 0, n)
	for number := uint64(2); len(primes) < n; number++ {
		if isPrime(number, primes) {
			primes = append(primes, number)
		}
	}
	return primes[n-1]
}

func isPrime(number uint64, smaller []uint64) bool {
	for _, prime := range smaller {
		if prime*prime > number {
			return true
		}
		if number%prime == 0 {
			return false
		}
	}
	return true
}
