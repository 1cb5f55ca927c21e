// The client of Go's standard library.
package main

import (
	"fmt"
	"net/http"
	"os"
	"strings"
)

func main() {
	for _, method := range []string{"GET", "POST", "HEAD"} {
		body := ""
		if method == "POST" {
			body = "hello"
		}
		request, err := http.NewRequest(method, os.Args[1], strings.NewReader(body))
		if err != nil {
			panic(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			panic(err)
		}
		response.Body.Close()
		fmt.Println("go", method, response.StatusCode)
	}
}
