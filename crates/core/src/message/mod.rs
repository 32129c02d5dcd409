//! Messages: their bytes, what a broker hands out, and what a handler says about them.
//!
//! A producer's message becomes a frame ([`Draft`], [`Frames`]); a frame that was read becomes a [`Delivery`]; a
//! handler answers it with an [`Outcome`]. [`partition_of`] says which partition a key belongs to. Only this folder
//! knows how a frame is laid out.

mod delivery;
mod frame;
mod outcome;
mod partitioner;

pub use delivery::{Batch, BatchCursor, Delivery, Found};
pub(crate) use frame::FRAME_BYTES_MIN;
pub use frame::{
    DELIVER_AT_HEADER, Draft, FrameError, Frames, HEADER_BYTES_MAX, HEADERS_MAX, ID_BYTES_MAX, KEY_BYTES_MAX,
    POSITION_MAX, PRIORITIES, PRIORITY, PRIORITY_HEADER, TTL_HEADER, put_frame,
};
pub use outcome::Outcome;
pub use partitioner::partition_of;
