//! Tests of the binary `keylane` from outside: what it sends, what it prints, and its exit codes (ADM-8).

mod bench;
mod binary;
mod canned;
mod clients;
mod data;
mod demo;
mod local;
mod serve;
mod traces;
