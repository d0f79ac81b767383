//! Fetch sessions over the wire (KIP-227).

use ottla_broker::Broker;
use ottla_protocol::messages as m;
use ottla_protocol::types::{Text, Uuid};

use super::wire::{Wire, config, fetch_request, run};

fn in_session(topic: &str, id: i32, epoch: i32) -> m::FetchRequest {
    m::FetchRequest { session_id: id, session_epoch: epoch, ..fetch_request(topic, 0, 0, 0) }
}

fn nothing_new(id: i32, epoch: i32) -> m::FetchRequest {
    m::FetchRequest { topics: Vec::new(), ..in_session("t", id, epoch) }
}

/// Proves: a session tells what is new and only that; errors 70 and 71 come without a session; -1 closes it.
#[test]
fn only_news() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let broker = Broker::start(config(folder.path())).await.expect("it starts");
        let mut wire = Wire::connect(&broker).await;
        wire.create_topic("t", 1).await;
        let first = wire.call(&in_session("t", 0, 0), 11).await;
        let id = first.session_id;
        assert!(id > 0 && first.responses.len() == 1);
        let quiet = wire.call(&nothing_new(id, 1), 11).await;
        assert_eq!((quiet.error_code, quiet.session_id, quiet.responses.len()), (0, id, 0));
        assert_eq!(wire.produce("t", 0, &["news"]).await, (0, 0));
        let news = wire.call(&nothing_new(id, 2), 11).await;
        assert_eq!(news.responses[0].partitions[0].high_watermark, 1);
        assert!(news.responses[0].partitions[0].records.as_ref().is_some_and(|records| !records.is_empty()));

        let late = wire.call(&nothing_new(id, 2), 11).await;
        assert_eq!((late.error_code, late.session_id), (71, 0), "INVALID_FETCH_SESSION_EPOCH");
        let unknown = wire.call(&nothing_new(id ^ 1, 1), 11).await;
        assert_eq!((unknown.error_code, unknown.session_id), (70, 0), "FETCH_SESSION_ID_NOT_FOUND");
        let last = wire.call(&in_session("t", id, -1), 11).await;
        assert_eq!((last.error_code, last.session_id, last.responses.len()), (0, 0, 1));
        assert_eq!(wire.call(&nothing_new(id, 3), 11).await.error_code, 70);
        broker.shutdown().await;
    });
}

/// Proves: from version 13 on topics are named by id, in a session too; an id that nobody has is an error of its
/// partition that is told each time; a session does not change its way of naming.
#[test]
fn by_topic_id() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let broker = Broker::start(config(folder.path())).await.expect("it starts");
        let mut wire = Wire::connect(&broker).await;
        let topic_id = wire.create_topic("t", 1).await;
        let mut request = in_session("", 0, 0);
        request.topics[0].topic_id = topic_id;
        let mut unknown = request.topics[0].clone();
        unknown.topic_id = Uuid([7; 16]);
        request.topics.push(unknown);
        let first = wire.call(&request, 13).await;
        let errors: Vec<i16> = first.responses.iter().map(|topic| topic.partitions[0].error_code).collect();
        assert_eq!(errors, [0, 100], "UNKNOWN_TOPIC_ID");
        let id = first.session_id;
        assert_eq!(wire.call(&nothing_new(id, 1), 12).await.error_code, 106, "FETCH_SESSION_TOPIC_ID_ERROR");
        let next = wire.call(&nothing_new(id, 1), 13).await;
        assert_eq!(next.responses.len(), 1, "errors are told each time, what has no news is not");
        assert_eq!(next.responses[0].topic_id, Uuid([7; 16]));

        let mut forget = nothing_new(id, 2);
        forget.forgotten_topics_data = vec![m::fetch_request::ForgottenTopic {
            topic_id: Uuid([7; 16]),
            partitions: vec![0],
            ..Default::default()
        }];
        let quiet = wire.call(&forget, 13).await;
        assert_eq!((quiet.session_id, quiet.responses.len()), (id, 0));
        forget.session_epoch = 3;
        forget.forgotten_topics_data[0].topic_id = topic_id;
        assert_eq!(wire.call(&forget, 13).await.session_id, 0, "an emptied session ends");
        assert_eq!(wire.call(&nothing_new(id, 4), 13).await.error_code, 70);
        broker.shutdown().await;
    });
}

/// Proves: the cache has its bound; who gets no session is served without.
#[test]
fn no_room() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let mut settings = config(folder.path());
        settings.fetch_sessions_max = 2;
        let broker = Broker::start(settings).await.expect("it starts");
        let mut wire = Wire::connect(&broker).await;
        wire.create_topic("t", 1).await;
        let mut ids = Vec::new();
        for _ in 0..4 {
            let answer = wire.call(&in_session("t", 0, 0), 11).await;
            assert_eq!((answer.error_code, answer.responses.len()), (0, 1));
            assert_eq!(answer.responses[0].topic, Text::from_static("t"));
            ids.push(answer.session_id > 0);
        }
        assert_eq!(ids, [true, true, false, false]);
        broker.shutdown().await;
    });
}
