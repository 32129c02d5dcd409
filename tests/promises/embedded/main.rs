//! The promises on the embedded broker, from outside: those that every broker keeps, and those of this broker alone.

mod dead;
mod lock;
mod memory;

keylane_tests::promises!(Embedded);
