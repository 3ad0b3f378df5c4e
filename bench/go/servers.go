package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"
)

// serverHogs is the number of loops beside the server of tcp_hogs.
const serverHogs = 4

// backlog is that of every server of every runtime. A whole wave of accept_burst has room in it.
const backlog = 2_048

// listen returns a listener and its port.
func listen() (net.Listener, int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, 0, err
	}
	if err := setBacklog(listener.(*net.TCPListener)); err != nil {
		return nil, 0, err
	}
	return listener, listener.Addr().(*net.TCPAddr).Port, nil
}

// setBacklog gives a listener the backlog that all servers have, in place of Go's own.
func setBacklog(listener *net.TCPListener) error {
	conn, err := listener.SyscallConn()
	if err != nil {
		return err
	}
	var refused error
	err = conn.Control(func(fd uintptr) { refused = syscall.Listen(int(fd), backlog) })
	return errors.Join(err, refused)
}

// serveEcho starts a server and returns its port.
func serveEcho() (int, error) {
	listener, port, err := listen()
	if err != nil {
		return 0, err
	}
	go func() {
		for {
			stream, err := listener.Accept()
			if err != nil {
				fmt.Fprintf(os.Stderr, "tcp_echo: %v\n", err)
				continue
			}
			go echo(stream)
		}
	}()
	return port, nil
}

// echo is a connection's goroutine. It ends with its client.
func echo(stream net.Conn) {
	defer stream.Close()
	buffer := make([]byte, 1024)
	for {
		n, err := stream.Read(buffer)
		if err != nil {
			return
		}
		if _, err := stream.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// serveBesideHogs serves beside loops that never call anything.
func serveBesideHogs() (int, error) {
	for range serverHogs {
		go func() {
			for {
			}
		}()
	}
	return serveEcho()
}

// serveHTTP answers as the example http does.
func serveHTTP() (int, error) {
	listener, port, err := listen()
	if err != nil {
		return 0, err
	}
	handler := http.NewServeMux()
	handler.HandleFunc("GET /hello", func(answer http.ResponseWriter, _ *http.Request) {
		answer.Header().Set("Content-Type", "text/plain")
		io.WriteString(answer, "Hello, world!\n")
	})
	go func() {
		err := http.Serve(listener, handler)
		fmt.Fprintf(os.Stderr, "http_hello: %v\n", err)
		os.Exit(1)
	}()
	return port, nil
}
