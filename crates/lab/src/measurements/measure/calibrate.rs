//! Measures the path itself: its round-trip time, and the throughput of one and of eight TCP flows with iperf3.

use std::net::UdpSocket;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde_json::Value;

use crate::measurements::measure::figures;
use crate::network::hosts::Hosts;
use crate::processes::groups::Group;
use crate::processes::session::Session;
use crate::processes::{inside, server};
use crate::units::RoundTrip;

/// The figures of one path.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Calibration {
    pub(crate) rtt_asked_ms: f64,
    pub(crate) rtt_measured_ms: f64,
    pub(crate) flows: Vec<Throughput>,
}

/// One iperf3 run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Throughput {
    pub(crate) flows: u32,
    pub(crate) gigabits_per_second: f64,
    pub(crate) retransmits: u64,
}

/// The number of flows and the duration of the iperf3 runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// Number of flows in each run.
    pub(crate) flow_counts: &'static [u32],
    /// Measured part of each run, in seconds.
    pub(crate) seconds: u32,
    /// Time before the measured part, in seconds. It is excluded because of slow start.
    pub(crate) omitted_seconds: u32,
}

/// Measures the path with each number of flows.
pub(crate) fn measure(
    session: &Session,
    hosts: &Hosts,
    round_trip: RoundTrip,
    effort: Effort,
) -> Result<Calibration> {
    let rtt_measured = measured_round_trip(hosts)?;
    let group = Group::create(session.id(), "calibrate")?;
    let log = session.directory().join("iperf3.log");
    let mut server = start_server(hosts, &group, &log)?;
    let flows: Result<Vec<Throughput>> = effort
        .flow_counts
        .iter()
        .map(|&flows| throughput(hosts, &group, flows, effort))
        .collect();
    group.kill();
    server.wait().context("failed to wait for iperf3")?;
    Ok(Calibration {
        rtt_asked_ms: round_trip.milliseconds(),
        rtt_measured_ms: rtt_measured.as_secs_f64() * 1e3,
        flows: flows?,
    })
}

/// Returns the table of the calibrations.
pub(crate) fn table(calibrations: &[Calibration]) -> String {
    let rows: Vec<Vec<String>> = calibrations
        .iter()
        .flat_map(|calibration| {
            calibration
                .flows
                .iter()
                .map(move |flow| (calibration, flow))
        })
        .map(|(calibration, flow)| {
            vec![
                format!("{:.1}", calibration.rtt_asked_ms),
                format!("{:.2}", calibration.rtt_measured_ms),
                flow.flows.to_string(),
                format!("{:.2}", flow.gigabits_per_second),
                flow.retransmits.to_string(),
            ]
        })
        .collect();
    figures::table(
        &[
            "RTT asked ms",
            "measured ms",
            "flows",
            "Gbit/s",
            "retransmits",
        ],
        &rows,
    )
}

/// Returns the median round-trip time of UDP echoes between the hosts.
fn measured_round_trip(hosts: &Hosts) -> Result<Duration> {
    let echo = inside::on_host(&hosts.target, || {
        Ok(UdpSocket::bind((hosts.target_address.as_str(), 0))?)
    })?;
    let port = echo.local_addr()?.port();
    echo.set_read_timeout(Some(ECHO_PATIENCE))?;
    std::thread::scope(|scope| {
        let echoing = scope.spawn(|| answer(&echo));
        let asking = inside::on_host(&hosts.source, || ask(hosts, port));
        echoing
            .join()
            .map_err(|_| anyhow::anyhow!("the echo thread panicked"))??;
        asking
    })
}

fn ask(hosts: &Hosts, port: u16) -> Result<Duration> {
    let socket = UdpSocket::bind((hosts.source_address.as_str(), 0))?;
    socket.set_read_timeout(Some(ECHO_PATIENCE))?;
    socket.connect((hosts.target_address.as_str(), port))?;
    let mut times = Vec::new();
    let mut buffer = [0; 64];
    for _ in 0..ECHOES {
        let start = Instant::now();
        socket.send(b"ping")?;
        if socket.recv(&mut buffer).is_ok() {
            times.push(start.elapsed().as_secs_f64());
        }
    }
    socket.send(b"")?;
    figures::median(&times)
        .map(Duration::from_secs_f64)
        .context("no echo came back")
}

/// Answers echoes until an empty datagram arrives, or until none arrives for a long time.
fn answer(socket: &UdpSocket) -> Result<()> {
    let mut buffer = [0; 64];
    while let Ok((length, from)) = socket.recv_from(&mut buffer) {
        if length == 0 {
            return Ok(());
        }
        socket.send_to(&buffer[..length], from)?;
    }
    Ok(())
}

fn start_server(hosts: &Hosts, group: &Group, log: &Path) -> Result<Child> {
    let mut command = inside::command(Some(&hosts.target), Some(group), "iperf3")?;
    command.args(["-s", "-p", &IPERF_PORT.to_string()]);
    server::start(command, &hosts.target, IPERF_PORT, log)
}

fn throughput(hosts: &Hosts, group: &Group, flows: u32, effort: Effort) -> Result<Throughput> {
    let output = inside::command(Some(&hosts.source), Some(group), "iperf3")?
        .args([
            "-J",
            "-c",
            &hosts.target_address,
            "-p",
            &IPERF_PORT.to_string(),
        ])
        .args(["-P", &flows.to_string(), "-t", &effort.seconds.to_string()])
        .args(["-O", &effort.omitted_seconds.to_string()])
        .stdin(Stdio::null())
        .output()
        .context("failed to start iperf3")?;
    let report: Value = serde_json::from_slice(&output.stdout).context("iperf3 wrote no JSON")?;
    if let Some(error) = report.get("error") {
        bail!("iperf3 failed: {error}");
    }
    let received = report
        .pointer("/end/sum_received/bits_per_second")
        .and_then(Value::as_f64);
    let resent = report
        .pointer("/end/sum_sent/retransmits")
        .and_then(Value::as_u64);
    Ok(Throughput {
        flows,
        gigabits_per_second: received.context("iperf3 reported no throughput")? / 1e9,
        retransmits: resent.unwrap_or(0),
    })
}

const ECHOES: usize = 20;
const ECHO_PATIENCE: Duration = Duration::from_secs(2);
const IPERF_PORT: u16 = 5201;
