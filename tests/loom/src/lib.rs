//! Empty: the test is all there is.
