//! The host of a sweep: its name, its processor, and the speed of one core.

use std::hint::black_box;
use std::time::Instant;

use zmove_disk::cores;

use crate::sweep::result::SweepHost;

impl SweepHost {
    /// Describes this host. The speed measurement takes some hundredths of a second of CPU time.
    pub(crate) fn this() -> Self {
        let core_operations_per_second = (0..RUNS)
            .map(|_| operations_per_second())
            .fold(0.0, f64::max);
        Self {
            name: Self::own_name(),
            cpu: cpu(),
            cores: cores(),
            core_operations_per_second,
        }
    }

    /// Returns the name of this host, from `uname`.
    pub(crate) fn own_name() -> String {
        rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned()
    }
}

/// Returns the name of the processor, from `/proc/cpuinfo`.
fn cpu() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    model.map_or_else(
        || std::env::consts::ARCH.to_owned(),
        |(_, model)| model.trim().to_owned(),
    )
}

/// Measures the rate of a chain of dependent operations. The rate depends only on the clock frequency.
fn operations_per_second() -> f64 {
    let started = Instant::now();
    let mut number = black_box(1_u64);
    for _ in 0..OPERATIONS {
        number = number
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
    }
    black_box(number);
    f64::from(OPERATIONS) / started.elapsed().as_secs_f64().max(1e-9)
}

/// Number of operations per run, about 5 ms at 3 GHz.
const OPERATIONS: u32 = 4_000_000;
/// Number of runs. The fastest counts, because other processes may use the core during a run.
const RUNS: u32 = 5;
