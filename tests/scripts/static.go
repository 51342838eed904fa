// A static Go program: raw system calls, many threads, mmap.
package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"sync"
	"syscall"
)

func must(err error) {
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
}

func parallel() {
	var wait sync.WaitGroup
	for worker := 0; worker < 8; worker++ {
		wait.Add(1)
		go func(worker int) {
			defer wait.Done()
			for i := 0; i < 50; i++ {
				name := fmt.Sprintf("dir/%d-%d", worker, i)
				must(os.WriteFile(name, bytes.Repeat([]byte{byte(worker)}, 100*i), 0o644))
				must(os.Rename(name, name+".new"))
				if i%5 == 0 {
					must(os.Remove(name + ".new"))
				}
			}
		}(worker)
	}
	wait.Wait()
}

func list() {
	total, count := int64(0), 0
	must(filepath.Walk("dir", func(_ string, info os.FileInfo, err error) error {
		must(err)
		if info.Mode().IsRegular() {
			total += info.Size()
			count++
		}
		return nil
	}))
	fmt.Println(count, total)
}

func mapped() {
	file, err := os.OpenFile("map", os.O_RDWR|os.O_CREATE, 0o600)
	must(err)
	must(file.Truncate(1 << 16))
	memory, err := syscall.Mmap(int(file.Fd()), 0, 1<<16, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	must(err)
	copy(memory[5000:], "through memory")
	_, err = file.WriteAt([]byte("through write"), 9000)
	must(err)
	fmt.Printf("%q\n", memory[9000:9013])
	must(syscall.Munmap(memory))
	read := make([]byte, 14)
	_, err = file.ReadAt(read, 5000)
	must(err)
	fmt.Printf("%q\n", read)
	must(file.Sync())
	must(file.Close())
}

func errors() {
	_, err := os.Open("missing")
	fmt.Println(err)
	fmt.Println(os.Mkdir("dir", 0o755))
	fmt.Println(os.Remove("dir"))
	_, err = os.ReadFile("dir")
	fmt.Println(err)
	fmt.Println(os.Symlink("x", "dir"))
	fmt.Println(os.Link("missing", "y"))
}

func main() {
	must(os.MkdirAll("dir/sub/deep", 0o755))
	parallel()
	list()
	mapped()
	errors()
	file, err := os.OpenFile("log", os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	must(err)
	for i := 0; i < 1000; i++ {
		fmt.Fprintln(file, i)
	}
	must(file.Close())
	file, err = os.Open("log")
	must(err)
	end, err := file.Seek(-4, io.SeekEnd)
	must(err)
	rest, err := io.ReadAll(file)
	must(err)
	fmt.Printf("%d %q\n", end, rest)
	names, err := os.ReadDir(".")
	must(err)
	sort.Slice(names, func(a, b int) bool { return names[a].Name() < names[b].Name() })
	for _, name := range names {
		fmt.Println(name.Name(), name.IsDir())
	}
	must(os.RemoveAll("dir"))
	_, err = os.Stat("dir")
	fmt.Println(os.IsNotExist(err))
}
