module gopeer

go 1.23
