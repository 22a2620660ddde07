//! Measurement and visualization: sweeps of storage, traces of transfers, results of probes, and histograms of file
//! trees.
//!
//! **Invariant:** the crates that move data do not depend on this crate. A receiver measures storage by a function that
//! its caller passes ([`sweep::measure_target`]).
//!
//! ```no_run
//! use std::sync::atomic::AtomicBool;
//! use zmove_tools::sweep::{SweepConfig, sweep};
//! let config = SweepConfig::at("/data");
//! let measured = sweep(&config, &AtomicBool::new(false), &mut |_event| {})?;
//! println!("{}", measured.table());
//! # Ok::<(), zmove_tools::sweep::SweepError>(())
//! ```

pub mod drawing;
pub mod figures;
#[doc(hidden)]
pub mod fuzzing;
pub mod histogram;
pub mod probe;
pub mod sweep;
pub mod trace;
