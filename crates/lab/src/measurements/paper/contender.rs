//! The tools of the study, each with the best options according to its documentation.

use std::str::FromStr;

use anyhow::{Result, bail};

use crate::measurements::peers::Tool;

/// A tool of the study.
#[derive(Clone, Debug)]
pub(crate) struct Contender {
    pub(crate) name: String,
    pub(crate) tool: Tool,
    /// The number of processes, for a wrapper.
    pub(crate) processes: Option<u32>,
}

impl Contender {
    /// Returns the wrapper with a number of processes.
    pub(crate) fn wrapper(processes: u32) -> Self {
        let tool = format!("{WRAPPER}:-n {processes}")
            .parse()
            .expect("the lab knows its wrapper");
        Self {
            name: format!("{WRAPPER} -n {processes}"),
            tool,
            processes: Some(processes),
        }
    }

    /// Returns this tool and its variants in the study.
    pub(crate) fn variants(&self) -> Vec<Self> {
        let swept = PROCESSES
            .iter()
            .filter(|_| self.name == WRAPPER)
            .map(|processes| Self::wrapper(*processes));
        std::iter::once(self.clone()).chain(swept).collect()
    }
}

impl FromStr for Contender {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let Some((name, tool)) = TOOLS.into_iter().find(|(name, _)| *name == text) else {
            bail!("the study has no tool {text}; it has {ALL}");
        };
        Ok(Self {
            name: name.to_owned(),
            tool: tool.parse()?,
            processes: None,
        })
    }
}

/// The tools by their names on the command line, and their names in `compare`.
const TOOLS: [(&str, &str); 14] = [
    ("zmove", "zmove"),
    ("zmove-quic", "zmove:--transport quic"),
    ("rsync", "rsync"),
    ("rsyncd", "rsyncd"),
    (WRAPPER, WRAPPER),
    ("scp", "scp"),
    ("tarmbuffer", "tarmbuffer"),
    ("rclone", "rclone"),
    ("gridftp", "gridftp"),
    ("syq", "syq"),
    ("xrdcp", "xrdcp"),
    ("davix", "davix"),
    ("rcp", "rcp"),
    ("qcp", "qcp"),
];
pub(crate) const ALL: &str =
    "zmove,zmove-quic,rsync,rsyncd,fpsync,scp,tarmbuffer,rclone,gridftp,syq,xrdcp,davix,rcp,qcp";
/// The wrapper of rsync that is measured with different numbers of processes.
pub(crate) const WRAPPER: &str = "fpsync";
/// The numbers of processes.
pub(crate) const PROCESSES: [u32; 5] = [1, 2, 4, 8, 16];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_tools_are_known_and_the_wrapper_is_swept() {
        let tools: Vec<Contender> = ALL.split(',').map(|name| name.parse().unwrap()).collect();
        assert_eq!(tools.len(), TOOLS.len());
        let variants: Vec<usize> = tools.iter().map(|tool| tool.variants().len()).collect();
        assert_eq!(
            variants
                .iter()
                .filter(|variants| **variants > 1)
                .collect::<Vec<_>>(),
            [&6]
        );
        assert_eq!(Contender::wrapper(4).name, "fpsync -n 4");
        assert!("parsyncfp".parse::<Contender>().is_err());
    }
}
