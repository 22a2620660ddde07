//! The results of a sweep as text: a line for each size and each class, and a note on the use of the page cache.

use zmove_types::{ByteCount, Printable, SizeClass};

use crate::drawing::scale::size_label;
use crate::figures::{bytes_per_second, files_per_second};
use crate::sweep::result::{CacheUse, IoDirection, Measured, Sweep, Throughput};

impl Sweep {
    /// Returns the sweep as text.
    #[must_use]
    pub fn table(&self) -> String {
        table(self)
    }
}

fn table(sweep: &Sweep) -> String {
    let mut text = format!(
        "{}: {}, {} threads, {}, {:.0} s\n",
        Printable(&sweep.storage.path),
        Printable(format!(
            "{} on {}",
            sweep.storage.kind, sweep.storage.source
        )),
        sweep.threads,
        sweep.day(),
        sweep.seconds,
    );
    text += "               written and flushed                       read\n";
    text += "     size    files       bytes/s    files/s    files       bytes/s    files/s\n";
    for (name, class) in CLASSES {
        for size in sweep.of_class(class) {
            text += &line(
                &size_label(size.file_bytes),
                size.write.as_ref(),
                size.read.as_ref(),
            );
        }
        if sweep.of_class(class).count() > 1 {
            let together = |direction| together(sweep.of_class(class), direction);
            text += &line(
                name,
                together(IoDirection::Write).as_ref(),
                together(IoDirection::Read).as_ref(),
            );
        }
    }
    text + &ways(sweep)
}

const CLASSES: [(&str, SizeClass); 3] = [
    ("all LOSF", SizeClass::Losf),
    ("medium", SizeClass::Medium),
    ("large", SizeClass::Large),
];

fn line(name: &str, write: Option<&Throughput>, read: Option<&Throughput>) -> String {
    let shown = |moved: Option<&Throughput>| match moved {
        Some(moved) => {
            let bytes = bytes_per_second(moved.bytes_per_second);
            format!(
                "{:>8} {bytes:>13} {:>10}",
                moved.files,
                files_per_second(moved.files_per_second)
            )
        }
        None => format!("{:>8} {:>13} {:>10}", "-", "-", "-"),
    };
    format!("{name:>9} {} {}\n", shown(write), shown(read))
}

/// Combines the results of a class into one, as if all its sizes had been measured in one run.
fn together<'a>(
    sizes: impl Iterator<Item = &'a Measured>,
    direction: IoDirection,
) -> Option<Throughput> {
    let all = sizes.filter_map(|size| size.moved(direction).map(|moved| (size.file_bytes, moved)));
    let mut sum: Option<Throughput> = None;
    let mut files = 0.0;
    for (file_bytes, moved) in all {
        files += ByteCount(moved.bytes).as_f64() / ByteCount(file_bytes).as_f64();
        let sum = sum.get_or_insert(Throughput {
            files: 0,
            bytes: 0,
            seconds: 0.0,
            ..*moved
        });
        sum.files += moved.files;
        sum.bytes += moved.bytes;
        sum.seconds += moved.seconds;
    }
    sum.map(|sum| Throughput {
        bytes_per_second: ByteCount(sum.bytes).as_f64() / sum.seconds,
        files_per_second: files / sum.seconds,
        ..sum
    })
}

/// Describes whether and how the data went through the page cache.
fn ways(sweep: &Sweep) -> String {
    let from = |direction| {
        let direct = |size: &&Measured| {
            size.moved(direction)
                .is_some_and(|moved| moved.way == CacheUse::Direct)
        };
        let size = sweep.sizes.iter().find(direct)?;
        Some(format!(
            "past the page cache (O_DIRECT) for files of {} and larger",
            size_label(size.file_bytes)
        ))
    };
    let writes = from(IoDirection::Write).unwrap_or_else(|| "through the page cache".to_owned());
    let reads = match from(IoDirection::Read) {
        Some(direct) => format!("{direct}; smaller files were dropped from the page cache first"),
        None => "through the page cache, after dropping the files from it".to_owned(),
    };
    let mut text = format!(
        "writes: with the flush (syncfs; fdatasync for each file above 4 MiB), {writes}\n\
         reads: {reads} (posix_fadvise); names and inodes stay cached\n",
    );
    let cached = sweep
        .sizes
        .iter()
        .filter_map(|size| size.read.as_ref())
        .filter(|read| read.way == CacheUse::Cached);
    let cached = cached.count();
    if cached > 0 {
        text += &format!(
            "{cached} sizes were read from the page cache, which could not be dropped: these rates are those of \
             memory\n"
        );
    }
    if !sweep.complete {
        text.push_str(
            "not all planned sizes were measured in the time limit; use a longer --time\n",
        );
    }
    text
}
