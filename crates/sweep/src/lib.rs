//! The speed of a storage: files of one size after the other, written and read as a transfer would, within a budget of
//! bytes and time.
//!
//! The sizes are those of elbencho's storage sweep, in the classes of "When to use rsync" (Fang, Cottrell,
//! Kissel): LOSF from 1 KiB, medium from 1 MiB, large from 1 GiB.
//!
//! A sweep does what a transfer does, with the same storage engine (`zmove-disk`): small files are made in
//! staging directories, large ones under hidden names, reserved and written group by group, and both are
//! flushed over and over and at the end. It keeps to its time on slow storage too (`pace.rs`).
//!
//! ```no_run
//! use std::sync::atomic::AtomicBool;
//! use zmove_sweep::{Ceiling, Direction, SweepConfig, sweep};
//! let config = SweepConfig::at("/data");
//! let measured = sweep(&config, &AtomicBool::new(false), &mut |_event| {})?;
//! let reads = Ceiling::of(&measured, Direction::Read).expect("it has read something");
//! println!("a million files of 4 KiB take {:.0} s at least", reads.seconds(1_000_000, 4096 * 1_000_000));
//! # Ok::<(), zmove_sweep::SweepError>(())
//! ```

mod ceiling;
mod cell;
mod compare;
mod error;
mod host;
mod place;
mod plan;
mod result;
mod run;
mod saved_sweeps;
mod storage;

pub use ceiling::Ceiling;
pub use compare::{Compared, Comparison};
pub use error::SweepError;
pub use result::{CacheUse, Direction, Host, Measured, Moved, ReadError, Storage, Sweep};
pub use run::{SweepConfig, SweepEvent, sweep};
pub use saved_sweeps::SavedSweeps;
