//! The exchange over HTTP/3: one request, and the response out of h3.

use bytes::Buf;
use clientkit::{Clock, Field, Request, Response, Verdict};
use h3::client::RequestStream;
use h3_quinn::BidiStream;

use crate::ending;
use crate::options::SetupError;

/// Empty DATA frames to read over in succession: h3 says the same of them as of the end.
const EMPTY_FRAMES: usize = 100;

/// The request; made before the clock starts. An error is a URL that HTTP/3 has no form for.
pub fn head(request: &Request) -> Result<http::Request<()>, SetupError> {
    let url = &request.url;
    let uri = http::Uri::builder()
        .scheme("https")
        .authority(url.authority.as_str())
        .path_and_query(url.path.as_str())
        .build()?;
    let head = http::Request::get(uri)
        .header("user-agent", &request.user_agent)
        .header("accept", "*/*")
        .header("accept-encoding", "identity");
    Ok(head.body(())?)
}

/// Asks on an established connection, and reads until there is a verdict.
pub async fn exchange(
    connection: &quinn::Connection,
    head: http::Request<()>,
    response: &mut Response,
    clock: &Clock,
) -> Verdict {
    let http = h3_quinn::Connection::new(connection.clone());
    let mut builder = h3::client::builder();
    let (mut driver, mut sender) = match builder.send_grease(false).build(http).await {
        Ok(pair) => pair,
        Err(error) => return ending::of_http3(connection, &error),
    };
    // Reads what the server sends beside the response; an error of that shows in the request's stream, too.
    let _driver = tokio::spawn(async move { driver.wait_idle().await });
    match ask_and_read(&mut sender, head, response, clock).await {
        Ok(verdict) => verdict,
        Err(error) => ending::of_stream(connection, &error),
    }
}

async fn ask_and_read(
    sender: &mut h3::client::SendRequest<h3_quinn::OpenStreams, bytes::Bytes>,
    head: http::Request<()>,
    response: &mut Response,
    clock: &Clock,
) -> Result<Verdict, h3::error::StreamError> {
    let mut stream = sender.send_request(head).await?;
    stream.finish().await?;
    while response.status.is_none() {
        let head = stream.recv_response().await?;
        if let Some(verdict) = take_head(response, &head, clock) {
            return Ok(verdict);
        }
    }
    read_body(&mut stream, response, clock).await
}

/// Status and fields, interim (1xx) or final.
fn take_head(response: &mut Response, head: &http::Response<()>, clock: &Clock) -> Option<Verdict> {
    let status = head.status();
    let others = head.headers().iter();
    let fields: Vec<Field<'_>> = std::iter::once((&b":status"[..], status.as_str().as_bytes()))
        .chain(others.map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes())))
        .collect();
    response.on_headers(&fields, clock.elapsed())
}

async fn read_body(
    stream: &mut RequestStream<BidiStream<bytes::Bytes>, bytes::Bytes>,
    response: &mut Response,
    clock: &Clock,
) -> Result<Verdict, h3::error::StreamError> {
    let mut empty = 0;
    while !response.is_whole() && empty < EMPTY_FRAMES {
        let Some(mut data) = stream.recv_data().await? else {
            empty += 1; // or the end, which h3 then says again
            continue;
        };
        empty = 0;
        let now = clock.elapsed();
        while data.has_remaining() {
            let size = data.chunk().len();
            if let Some(verdict) = response.on_body(data.chunk(), now) {
                return Ok(verdict);
            }
            data.advance(size);
        }
    }
    Ok(response.on_finished())
}
