//! A session that inspects the target. It reports the changes that a transfer would make, or all differences.
//!
//! **Invariant:** neither this module nor any code that it calls changes the target. File system features are tested
//! only with an unnamed file. When [`run`] returns, the threads that it started have ended.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::mpsc;
use zmove_transport::ControlError;
use zmove_wire::{
    Answer, Extraneous, Finished, Open, Opened, Question, Request, TargetState, ToReceiver,
    ToSender,
};

use crate::comparison::entries::inspection::Inspection;
use crate::config::ReceiverConfig;
use crate::error::SessionError;
use crate::rights::quota::Charge;
use crate::rights::quota::messages::ChargedMessage;
use crate::rights::top_names::TopNames;
use crate::session::connections::{Connections, InspectionKind, SessionReport, opened};
use crate::session::opening::free_bytes;
use crate::session::requests::OpenRequests;
use crate::session::threads::{Reporter, Workers};
use crate::store::reports::{ChargedReport, Reports, ThreadReport};
use crate::store::target::InspectedTarget;

/// A running inspection.
struct InspectionSession {
    connections: Connections,
    inspection: Arc<Inspection>,
    /// The names about which the sender may ask.
    names: TopNames,
    requests: OpenRequests,
    /// The threads that inspect the target.
    workers: Workers,
    outcomes: mpsc::Receiver<ChargedReport>,
}

/// Maximum number of queued outcomes.
const OUTCOMES_MAX: usize = 64;

/// Answers requests until the sender announces the end.
pub(crate) async fn run(
    connections: Connections,
    open: Open,
    config: &ReceiverConfig,
    stop: impl Future<Output = SessionError>,
) -> Result<SessionReport, SessionError> {
    let looked = Some(if open.verify {
        InspectionKind::Verification
    } else {
        InspectionKind::Preview
    });
    tokio::pin!(stop);
    let is_listed = config.listed.is_some();
    let asked = open.clone();
    let access = config.rights.access.clone();
    let look_at = move || {
        if is_listed {
            Ok(InspectedTarget::default())
        } else {
            InspectedTarget::inspect(&asked, &access)
        }
    };
    let (connections, seen) = connections
        .open_after(stop.as_mut(), look_at, |seen| answer(seen, &open, config))
        .await?;
    let (told, outcomes) = mpsc::channel(OUTCOMES_MAX);
    let reports = Reports {
        outcomes: told,
        quota: config.quota.clone(),
    };
    let mut inspecting = InspectionSession {
        connections,
        inspection: Arc::new(Inspection::new(&open, seen, config, reports)),
        names: config.top_names.clone(),
        requests: OpenRequests::default(),
        workers: Workers::new(&config.quota),
        outcomes,
    };
    let ended = tokio::select! {
        ended = inspecting.handle_messages() => ended,
        error = stop => Err(error),
    };
    inspecting.end(&ended).await;
    ended.map(|()| SessionReport {
        looked,
        ..SessionReport::default()
    })
}

/// Returns the description of the target that is sent to the sender.
fn answer(seen: &InspectedTarget, open: &Open, config: &ReceiverConfig) -> Opened {
    let state = if seen.tree.is_some() || config.listed.is_some() {
        TargetState::Populated
    } else {
        TargetState::Empty
    };
    let room = seen.tree.as_ref().filter(|_| !open.verify);
    Opened {
        single_name: seen.rename.as_ref().map(|(_, to)| to.clone()),
        free_bytes: room.and_then(|tree| free_bytes(tree.fd())),
        ..opened(state, config.lanes_max)
    }
}

impl InspectionSession {
    async fn handle_messages(&mut self) -> Result<(), SessionError> {
        let mut announced = false;
        while !announced || !self.requests.has_no_questions() {
            tokio::select! {
                message = self.connections.inbox.recv() => {
                    let ChargedMessage { message, held } = message.ok_or(ControlError::Closed)??;
                    self.names.check_message(&message)?;
                    match message {
                        ToReceiver::Request(request) if !announced => self.take(request, held)?,
                        ToReceiver::Announce { items: 0, mismatches: 0 } => announced = true,
                        _ => return Err(SessionError::out_of_order("a message during an inspection")),
                    }
                }
                Some(report) = self.outcomes.recv() => self.reply(report).await?,
                Some(lane) = self.connections.lanes.recv() => drop(lane),
            }
        }
        let counts = self.inspection.view.policy.counts();
        if !counts.is_empty() {
            self.connections.send(&ToSender::NotKept { counts }).await?;
        }
        Ok(self
            .connections
            .send_last(&ToSender::Finished(Finished::default()))
            .await?)
    }

    /// Starts to answer a request.
    fn take(
        &mut self,
        Request { number, question }: Request,
        question_held: Charge,
    ) -> Result<(), SessionError> {
        let open = self.requests.ask(&question)?;
        let is_allowed = match &question {
            Question::Send(_) => false,
            Question::Report(_) => true,
            Question::Hash(_) => self.inspection.verifies(),
            Question::Extraneous(_) => {
                self.inspection.view.policy.rules.extraneous == Extraneous::Goes
            }
        };
        if !is_allowed {
            return Err(SessionError::out_of_order(
                "a request that the opening message does not allow",
            ));
        }
        self.workers.start_for(&self.inspection, move |inspection| {
            let mut held = inspection.reports().quota.empty_charge();
            let answer = match &question {
                Question::Send(groups) | Question::Report(groups) => {
                    Answer::Verdicts(inspection.verdicts(groups))
                }
                Question::Hash(groups) => Answer::Hashes(inspection.hashes(groups)),
                Question::Extraneous(ranges) => {
                    Answer::Extraneous(inspection.extraneous(ranges, &mut held))
                }
            };
            drop((question, question_held));
            let reply = ThreadReport::reply(number, answer);
            inspection.reports().report_charged(reply, held, Some(open));
        })
    }

    async fn reply(&mut self, report: ChargedReport) -> Result<(), SessionError> {
        let _until_it_is_sent = report.held;
        match report.outcome {
            ThreadReport::Message(reply) => Ok(self.connections.send(&reply).await?),
            ThreadReport::OverLimit(error) => Err(error.into()),
            _ => Err(SessionError::Panicked),
        }
    }

    /// Stops the threads of the session and waits for them.
    async fn end(mut self, ended: &Result<(), SessionError>) {
        self.inspection.stopping.store(true, Ordering::Relaxed);
        self.outcomes.close();
        self.workers.end().await;
        self.connections.end_session(ended).await;
    }
}
