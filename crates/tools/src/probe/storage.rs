//! The speed of the sender's or the receiver's storage, from a sweep.

use serde::Serialize;
use zmove_types::{ByteCount, Printable};
use zmove_wire::{Swept, SweptSize};

use crate::drawing::scale::size_label;
use crate::figures::{bytes_per_second, files_per_second};
use crate::sweep::{Ceiling, IoDirection, Sweep, swept};

/// The storage of one side and its rates.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StorageRates {
    /// A display description of the storage and its sweep.
    about: String,
    complete: bool,
    /// The reason why the rates are unknown, or `None` if they were measured.
    fault: Option<String>,
    sizes: Vec<SizeRates>,
}

/// The rates for files of one size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct SizeRates {
    file_bytes: u64,
    write_bytes_per_second: Option<f64>,
    read_bytes_per_second: Option<f64>,
}

impl StorageRates {
    /// Returns the rates of this host's storage, from a new or a saved sweep.
    #[must_use]
    pub fn here(sweep: &Sweep) -> Self {
        let about = format!("{} (sweep of {})", sweep.storage.path, sweep.day());
        Self::there(about, &swept(sweep))
    }

    /// Returns the rates of the receiver's storage, as the receiver has measured them.
    #[must_use]
    pub fn there(about: String, swept: &Swept) -> Self {
        let rate = |rate: Option<u64>| rate.map(|rate| ByteCount(rate).as_f64());
        let size = |size: &SweptSize| SizeRates {
            file_bytes: size.file_bytes,
            write_bytes_per_second: rate(size.write),
            read_bytes_per_second: rate(size.read),
        };
        Self {
            about,
            complete: swept.complete,
            fault: swept
                .fault
                .map(|(operation, code)| format!("{operation}: {code}")),
            sizes: swept.sizes.iter().map(size).collect(),
        }
    }

    pub(super) fn ceiling(&self, direction: IoDirection) -> Option<Ceiling> {
        let rate = |size: &SizeRates| {
            let rate = match direction {
                IoDirection::Read => size.read_bytes_per_second,
                IoDirection::Write => size.write_bytes_per_second,
            };
            Some((size.file_bytes, rate?))
        };
        Ceiling::of_rates(self.sizes.iter().filter_map(rate))
    }

    /// Returns the rates as a text table.
    pub(super) fn text(&self, name: &str) -> String {
        let mut text = format!("{name}: {}\n", Printable(&self.about));
        if let Some(fault) = &self.fault {
            text += &format!("  not measured: {}\n", Printable(fault));
            return text;
        }
        if self.sizes.is_empty() {
            return text + "  not measured: the time was too short\n";
        }
        text += "     size        written    files/s           read    files/s\n";
        for size in &self.sizes {
            let shown = |rate: Option<f64>| match rate {
                Some(rate) => {
                    let files = files_per_second(rate / ByteCount(size.file_bytes).as_f64());
                    format!("{:>14} {files:>10}", bytes_per_second(rate))
                }
                None => format!("{:>14} {:>10}", "-", "-"),
            };
            let label = size_label(size.file_bytes);
            let write = shown(size.write_bytes_per_second);
            let read = shown(size.read_bytes_per_second);
            text += &format!("{label:>9} {write} {read}\n");
        }
        text
    }
}
