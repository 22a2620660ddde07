//! Serves the metrics page over plain HTTP to local programs.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::Context;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};

use super::connections::{CONNECTION_TIMEOUT, serve_each};
use super::metrics::Page;

/// Serves the page forever.
pub(crate) async fn serve(listener: TcpListener, page: Page) {
    let page = Arc::new(page);
    let accept =
        |context: &mut Context<'_>| listener.poll_accept(context).map_ok(|(socket, _)| socket);
    serve_each(accept, |socket| converse(socket, Arc::clone(&page))).await;
}

async fn converse(socket: TcpStream, page: Arc<Page>) -> hyper::Result<()> {
    let service = service_fn(move |request| {
        let response = answer(request, Arc::clone(&page));
        async { Ok::<_, Infallible>(response.await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(CONNECTION_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX);
    http.serve_connection(TokioIo::new(socket), service).await
}

async fn answer(request: Request<Incoming>, page: Arc<Page>) -> Response<Full<Bytes>> {
    let reading = matches!(*request.method(), Method::GET | Method::HEAD);
    match (request.uri().path(), reading) {
        ("/healthz", true) => plain(
            StatusCode::OK,
            "text/plain; charset=utf-8",
            "ok\n".to_owned(),
        ),
        // The page inspects every journal, which may block: there may be many journals, and the storage may be slow.
        ("/metrics", true) => match tokio::task::spawn_blocking(move || page.text()).await {
            Ok(Ok(text)) => plain(StatusCode::OK, OPEN_METRICS, text),
            Ok(Err(_)) | Err(_) => plain(
                StatusCode::INTERNAL_SERVER_ERROR,
                "text/plain",
                String::new(),
            ),
        },
        ("/healthz" | "/metrics", false) => plain(
            StatusCode::METHOD_NOT_ALLOWED,
            "text/plain",
            "only GET\n".to_owned(),
        ),
        _ => plain(
            StatusCode::NOT_FOUND,
            "text/plain",
            "/metrics and /healthz are here\n".to_owned(),
        ),
    }
}

fn plain(status: StatusCode, content: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(
        CONTENT_TYPE,
        hyper::header::HeaderValue::from_static(content),
    );
    response
}

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Maximum size of a request head, in bytes. This is the minimum that the library accepts.
const HEAD_BYTES_MAX: usize = 8192;
