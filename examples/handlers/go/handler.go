// A push handler: mkdir -p orders && go run .        (PORT is 9000 unless it is set)
// An order's file tells that it was done: a message can come twice. With a database, use one transaction for both.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"net/url"
	"os"
)

type order struct {
	Item  string
	Count int
}

func handle(w http.ResponseWriter, r *http.Request) {
	var got order
	wrong := json.NewDecoder(r.Body).Decode(&got)
	told := fmt.Sprintf("%s orders %d %s", r.Header.Get("Keylane-Key"), got.Count, got.Item)
	place := r.Header.Get("Keylane-Topic") + "-" + r.Header.Get("Keylane-Partition") + "-" + r.Header.Get("Keylane-Offset")
	path := "orders/" + url.PathEscape(place)
	if wrong != nil || got.Item == "" {
		http.Error(w, "not an order", http.StatusUnprocessableEntity) // It can never be handled.
	} else if _, missing := os.Stat(path); missing == nil {
		return // It was done before: 200.
	} else if err := os.WriteFile(path+".new", []byte(told), 0o644); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError) // It comes again.
	} else if err := os.Rename(path+".new", path); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	} else {
		fmt.Println(told)
	}
}

func main() {
	port, set := os.LookupEnv("PORT")
	if !set {
		port = "9000"
	}
	log.Fatal(http.ListenAndServe("127.0.0.1:"+port, http.HandlerFunc(handle)))
}
