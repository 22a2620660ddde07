//! What a probe has found.

use zmove_sender::ProbeReport;
use zmove_transport::Transport;

use super::prediction::Prediction;
use super::storage::Storage;

/// All that was found.
pub(super) struct Findings {
    pub(super) host: String,
    pub(super) transport: Transport,
    pub(super) report: ProbeReport,
    pub(super) source: Option<Storage>,
    pub(super) target: Option<Storage>,
    /// As it was typed.
    pub(super) tree: Option<String>,
    pub(super) prediction: Option<Prediction>,
    pub(super) advice: Vec<String>,
}
