//! The targets, with their limits.
//!
//! A new decoder needs a row here, a function that decodes, encodes and decodes again, and seeds in `seeds.rs`.

use std::path::Path;
use std::{fs, io};

use crate::{memory, seeds, wire};

/// A decoder, or several related ones.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name of the target and of its corpus.
    pub name: &'static str,
    /// Maximum length of an input, in bytes. It allows each part of the format to occur several times.
    pub input_bytes_max: usize,
    /// Maximum memory for one input, in bytes.
    memory_bytes_max: usize,
    decode: fn(&[u8]),
    seeds: fn() -> Vec<Vec<u8>>,
}

/// All targets.
pub const TARGETS: &[Target] = &[
    // Data from a peer.
    Target::new("greeting", 64, 64 << 10, wire::greeting, seeds::greeting),
    Target::new(
        "frame_header",
        96,
        64 << 10,
        wire::frame_header,
        seeds::frame_header,
    ),
    Target::new("batch", 4 << 10, 256 << 10, wire::batch, seeds::batch),
    Target::new(
        "file_head",
        1 << 10,
        64 << 10,
        wire::file_head,
        seeds::file_head,
    ),
    Target::new(
        "to_receiver",
        4 << 10,
        1 << 20,
        wire::to_receiver,
        seeds::to_receiver,
    ),
    Target::new(
        "to_sender",
        4 << 10,
        1 << 20,
        wire::to_sender,
        seeds::to_sender,
    ),
    Target::new(
        "to_source",
        4 << 10,
        1 << 20,
        wire::to_source,
        seeds::to_source,
    ),
    Target::new(
        "job_grant",
        4 << 10,
        1 << 20,
        wire::job_grant,
        seeds::job_grant,
    ),
    Target::new(
        "control",
        4 << 10,
        9 << 20,
        zmove_transport::fuzzing::control,
        seeds::control,
    ),
    Target::new(
        "frames",
        4 << 10,
        7 << 20,
        zmove_transport::fuzzing::frames,
        seeds::frames,
    ),
    Target::new(
        "sealed_frame",
        4 << 10,
        256 << 10,
        zmove_receiver::fuzzing::sealed_frame,
        seeds::sealed_frame,
    ),
    Target::new(
        "records",
        2 << 10,
        4 << 20,
        zmove_transport::fuzzing::records,
        seeds::records,
    ),
    Target::new(
        "ssh_words",
        1 << 10,
        256 << 10,
        zmove_engine::fuzzing::ssh_words,
        seeds::ssh_words,
    ),
    // Files that zmove has written. They may come from another version, or be damaged.
    Target::new(
        "journal",
        4 << 10,
        2 << 20,
        zmove_receiver::fuzzing::journal,
        seeds::journal,
    ),
    Target::new(
        "journal_records",
        4 << 10,
        2 << 20,
        zmove_receiver::fuzzing::journal_records,
        seeds::journal_records,
    ),
    Target::new(
        "journal_files",
        4 << 10,
        2 << 20,
        zmove_receiver::fuzzing::journal_files,
        seeds::journal_records,
    ),
    Target::new(
        "job_journal",
        4 << 10,
        2 << 20,
        zmove_receiver::fuzzing::job_journal,
        seeds::job_journal,
    ),
    Target::new(
        "paths",
        2 << 10,
        256 << 10,
        zmove_engine::fuzzing::paths,
        seeds::paths,
    ),
    Target::new(
        "trace",
        4 << 10,
        4 << 20,
        zmove_tools::fuzzing::trace,
        seeds::trace,
    ),
    // Text that people write.
    Target::new(
        "known_hosts",
        1 << 10,
        256 << 10,
        zmove_transport::fuzzing::known_hosts,
        seeds::known_hosts,
    ),
    Target::new(
        "authorized_keys",
        1 << 10,
        256 << 10,
        zmove_transport::fuzzing::authorized_keys,
        seeds::authorized_keys,
    ),
    Target::new(
        "identity",
        2 << 10,
        256 << 10,
        zmove_transport::fuzzing::identity,
        seeds::identity,
    ),
    Target::new(
        "config",
        1 << 10,
        1 << 20,
        zmove_cli::fuzzing::config,
        seeds::config,
    ),
    Target::new(
        "location",
        256,
        64 << 10,
        zmove_engine::fuzzing::location,
        seeds::location,
    ),
    Target::new(
        "quantities",
        64,
        64 << 10,
        zmove_cli::fuzzing::quantities,
        seeds::quantities,
    ),
    Target::new(
        "filters",
        256,
        32 << 20,
        zmove_cli::fuzzing::filters,
        seeds::filters,
    ),
    Target::new(
        "path_list",
        1 << 10,
        4 << 20,
        zmove_scan::fuzzing::path_list,
        seeds::path_list,
    ),
];

impl Target {
    const fn new(
        name: &'static str,
        input_bytes_max: usize,
        memory_bytes_max: usize,
        decode: fn(&[u8]),
        seeds: fn() -> Vec<Vec<u8>>,
    ) -> Self {
        Self {
            name,
            input_bytes_max,
            memory_bytes_max,
            decode,
            seeds,
        }
    }

    /// Returns the target with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        TARGETS.iter().find(|target| target.name == name).copied()
    }

    /// Runs the target on one input.
    ///
    /// # Panics
    /// A decoder violates one of its guarantees. If the run needs more memory than the target allows, the process is
    /// aborted.
    pub fn run(self, input: &[u8]) {
        memory::within(self.memory_bytes_max, || (self.decode)(input));
    }

    /// Returns inputs as this version of zmove encodes them.
    #[must_use]
    pub fn seeds(self) -> Vec<Vec<u8>> {
        (self.seeds)()
    }

    /// Writes the seeds to files in a directory, and creates the directory if it does not exist.
    ///
    /// # Errors
    /// The directory or a file cannot be written.
    pub fn write_seeds(self, directory: &Path) -> io::Result<()> {
        fs::create_dir_all(directory)?;
        (0..)
            .zip(self.seeds())
            .try_for_each(|(number, seed): (u32, _)| {
                fs::write(directory.join(format!("seed-{number}")), seed)
            })
    }
}

/// Prints the names of all targets, each with its maximum input length in bytes.
pub fn list_targets() {
    for target in TARGETS {
        println!("{} {}", target.name, target.input_bytes_max);
    }
}
