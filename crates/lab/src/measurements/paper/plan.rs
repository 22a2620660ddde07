//! The cells of a study.

use serde::{Deserialize, Serialize};
use zmove_types::SizeClass;

use super::contender::{Contender, PROCESSES, WRAPPER};

/// The parameters common to all cells. A study can be continued only with the same design.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Design {
    pub(crate) budget_bytes: u64,
    pub(crate) size_max_bytes: u64,
    pub(crate) files_max: u64,
    pub(crate) cut_seconds: u64,
    /// A description of the path, without its round-trip time.
    pub(crate) path: String,
}

/// The quantity that a cell measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Part {
    /// The rate at different file sizes.
    Sizes,
    /// The rate with different numbers of a wrapper's processes.
    Processes,
}

/// The cells of one data set and round-trip time, whose tools run in turn.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) part: Part,
    pub(crate) rtt_ms: f64,
    pub(crate) file_bytes: u64,
    pub(crate) files: u64,
    pub(crate) tools: Vec<Contender>,
}

impl Design {
    /// Returns all blocks of a round-trip time.
    pub(crate) fn blocks(&self, rtt_ms: f64, tools: &[Contender]) -> Vec<Block> {
        let block = |part, file_bytes: u64, tools| {
            let files = (self.budget_bytes / file_bytes).clamp(1, self.files_max);
            Block {
                part,
                rtt_ms,
                file_bytes,
                files,
                tools,
            }
        };
        let mut blocks: Vec<Block> = self
            .sizes()
            .into_iter()
            .map(|size| block(Part::Sizes, size, tools.to_vec()))
            .collect();
        if SWEPT_RTT_MS.contains(&rtt_ms) && tools.iter().any(|tool| tool.name == WRAPPER) {
            let swept: Vec<Contender> = PROCESSES.into_iter().map(Contender::wrapper).collect();
            blocks.extend(
                self.swept_sizes()
                    .into_iter()
                    .map(|size| block(Part::Processes, size, swept.clone())),
            );
        }
        blocks
    }

    /// Returns 1 KiB and its products with powers of four.
    fn sizes(&self) -> Vec<u64> {
        let sizes = (0..27_u32).map(|power| SIZE_MIN << (2 * power));
        sizes
            .take_while(|size| *size <= self.size_max_bytes)
            .collect()
    }

    /// Returns one size of each class: the second largest small size, the third largest medium size, and the smallest
    /// large size.
    fn swept_sizes(&self) -> Vec<u64> {
        let of = |class| {
            self.sizes()
                .into_iter()
                .filter(move |size| SizeClass::of(*size) == class)
        };
        let small = [
            of(SizeClass::Losf).nth_back(1),
            of(SizeClass::Medium).nth_back(2),
        ];
        small
            .into_iter()
            .chain([of(SizeClass::Large).next()])
            .flatten()
            .collect()
    }

    /// Returns the size of the target's file system: twice the largest data set, and a reserve.
    pub(crate) fn image_bytes(&self) -> u64 {
        self.budget_bytes.max(self.size_max_bytes) * 2 + SPARE_BYTES
    }
}

const SIZE_MIN: u64 = 1 << 10;
/// The round-trip times of a LAN and a WAN, as in the paper.
pub(crate) const SWEPT_RTT_MS: [f64; 2] = [0.2, 90.0];
/// Space for the storage sweep, which writes one GiB.
const SPARE_BYTES: u64 = 1280 << 20;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn design() -> Design {
        Design {
            budget_bytes: 512 << 20,
            size_max_bytes: 1 << 30,
            files_max: 10_000,
            cut_seconds: 20,
            path: "none".to_owned(),
        }
    }

    #[test]
    fn sizes_are_powers_of_four_and_each_set_keeps_to_the_budget_or_is_one_file() {
        let blocks = design().blocks(10.0, &["zmove".parse().unwrap()]);
        let sets: Vec<(u64, u64)> = blocks
            .iter()
            .map(|block| (block.file_bytes, block.files))
            .collect();
        assert_eq!(
            (sets.len(), sets[0], sets[10]),
            (11, (1 << 10, 10_000), (1 << 30, 1))
        );
        assert_eq!(sets[4], (256 << 10, 2_048));
        assert!(sets.windows(2).all(|pair| pair[1].0 == 4 * pair[0].0));
        assert!(
            sets.iter()
                .all(|(bytes, files)| bytes * files <= 512 << 20 || *files == 1)
        );
        assert!(blocks.iter().all(|block| block.part == Part::Sizes));
    }

    #[test]
    fn the_wrapper_is_swept_over_one_size_of_each_class() {
        let swept = |rtt, tool: &str| -> Vec<u64> {
            let blocks = design().blocks(rtt, &[tool.parse().unwrap()]);
            blocks
                .iter()
                .filter(|block| block.part == Part::Processes)
                .map(|block| block.file_bytes)
                .collect()
        };
        assert_eq!(swept(90.0, "fpsync"), [64 << 10, 16 << 20, 1 << 30]);
        assert!(swept(10.0, "fpsync").is_empty() && swept(90.0, "rsync").is_empty());
    }
}
