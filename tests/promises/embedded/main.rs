//! The promises on the embedded broker, from outside: those that hold on every broker, and what is this broker's alone.

mod dead;
mod lock;
mod memory;

keylane_tests::promises!(Embedded);
