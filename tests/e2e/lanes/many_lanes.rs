//! A peer that opens many lanes: ended lanes use no resources, and the number of waiting lanes is limited.

use std::sync::mpsc::{Receiver, Sender, channel};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use zmove_receiver::{Session, run_session};
use zmove_transport::{Connection, Frame, LaneBreaker, LaneError, LaneSource, memory_control};
use zmove_types::{BufferPool, LaneId, Stopwatch, TransferId};
use zmove_wire::limits::LANES_MAX;
use zmove_wire::{Greeting, Open, Role, ToReceiver, encode_message};

use crate::support::harness::{PATIENCE, Site, runtime};

const TRANSFER: TransferId = TransferId([9; 16]);

/// Encodes the message that opens a transfer.
fn opening(site: &Site) -> Vec<u8> {
    let open = Open::new(site.target().to_str().unwrap().into(), [0; 16]);
    encode_message(&ToReceiver::Open(open))
}

#[test]
fn an_ended_lane_uses_no_resources() {
    let site = Site::local();
    let (gone_in, gone) = channel();
    runtime().block_on(async {
        let ((reader, mut writer), far) = memory_control();
        writer.send(&opening(&site)).await.unwrap();
        let (sources, lanes) = mpsc::channel(1);
        let session = Session::new(TRANSFER, far, lanes);
        let session = tokio::spawn(run_session(session, std::future::pending()));
        for number in 0..2 * LANES_MAX {
            sources.send(ended_lane(&gone_in)).await.unwrap();
            tokio::task::block_in_place(|| wait_for_one(&gone, number));
        }
        drop((reader, writer));
        assert!(session.await.unwrap().is_err());
    });
}

#[track_caller]
fn wait_for_one(gone: &Receiver<()>, number: u16) {
    gone.recv_timeout(PATIENCE)
        .unwrap_or_else(|_| panic!("something is left of lane {number}"));
}

/// A lane that ends immediately. Signals `gone` when its breaker is dropped.
fn ended_lane(gone: &Sender<()>) -> Box<dyn LaneSource> {
    let last = Last(gone.clone());
    Box::new(Ended(LaneBreaker::new(move || {
        let _held = &last;
    })))
}

struct Last(Sender<()>);

impl Drop for Last {
    fn drop(&mut self) {
        // If the test has failed, the channel is closed.
        let _test_over = self.0.send(());
    }
}

struct Ended(LaneBreaker);

impl LaneSource for Ended {
    fn receive(
        &mut self,
        _: &BufferPool,
        _: &mut Stopwatch<'_>,
    ) -> Result<Option<Frame>, LaneError> {
        Ok(None)
    }

    fn breaker(&self) -> LaneBreaker {
        self.0.clone()
    }
}

#[test]
fn lanes_beyond_the_limit_are_closed() {
    let site = Site::daemon();
    runtime().block_on(async {
        let mut control = greet(&site, Role::Control).await;
        control.write_all(&opening(&site)).await.unwrap();
        control.flush().await.unwrap();
        let (closed_in, mut closed) = mpsc::channel(1);
        // `LANES_MAX` lanes are accepted, and as many more wait. The daemon keeps both open.
        for number in 0..=2 * LANES_MAX {
            let mut lane = greet(&site, Role::Lane(LaneId(number))).await;
            let closed = closed_in.clone();
            tokio::spawn(async move {
                drop(lane.read_to_end(&mut Vec::new()).await);
                closed.send(()).await
            });
        }
        site.the_daemon()
            .wait_for_log("too many lanes for its transfer");
        let closed = tokio::time::timeout(PATIENCE, closed.recv()).await;
        assert_eq!(closed, Ok(Some(())), "no lane is closed");
        drop(control);
    });
}

async fn greet(site: &Site, role: Role) -> Connection {
    let mut connection = site.the_daemon().dial(&site.path("client")).await;
    connection
        .write_all(&Greeting::new(role, TRANSFER).encode())
        .await
        .unwrap();
    connection.flush().await.unwrap();
    connection
}
