//! Connections that rest, and fetches that wait for one record.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Result, bail, ensure};
use ottla_env::rng::{OsRng, Rng};
use ottla_env::spawn::TaskGroup;
use ottla_env::time;
use ottla_protocol::messages as m;
use ottla_protocol::types::Text;
use serde_json::json;

use super::wire::Wire;
use super::{PATIENCE, REST, Target};

async fn open(target: &Target, count: usize) -> Result<Vec<Wire>> {
    let mut wires = Vec::with_capacity(count);
    for _ in 0..count {
        let mut wire = Wire::connect(&target.bootstrap).await?;
        wire.call(&m::ApiVersionsRequest::default(), 2).await?;
        wires.push(wire);
    }
    Ok(wires)
}

/// Opens connections, each with one request as every client sends it, and lets them rest.
pub(super) async fn idle(target: &Target, count: usize) -> Result<serde_json::Value> {
    let mut first = Wire::connect(&target.bootstrap).await?;
    first.call(&m::ApiVersionsRequest::default(), 2).await?;
    time::sleep(REST).await;
    let (memory, started) = (target.memory()?, time::now());
    let mut wires = open(target, count).await?;
    let opened = started.elapsed();
    time::sleep(REST).await;
    let used = target.memory()?.saturating_sub(memory);
    let resting = target.watch().await?;
    let started = time::now();
    first.call(&m::MetadataRequest::default(), 12).await?;
    let answered = started.elapsed();
    // All of them are still served.
    for wire in &mut wires {
        wire.call(&m::ApiVersionsRequest::default(), 2).await?;
    }
    Ok(json!({
        "connections": count,
        "time to open, s": opened.as_secs_f64(),
        "memory, MiB": used as f64 / 1_048_576.0,
        "memory of a connection, KiB": used as f64 / 1024.0 / count as f64,
        "processor at rest, %": resting,
        "Metadata meanwhile, ms": answered.as_secs_f64() * 1000.0,
    }))
}

/// Parks fetches on one partition, then writes one record: how long until the last one has it.
pub(super) async fn fetches(target: &Target, count: usize) -> Result<serde_json::Value> {
    let topic = format!("bench-load-{:016x}", OsRng.next_u64());
    let mut writer = Wire::connect(&target.bootstrap).await?;
    writer.create_topic(&topic, 1).await?;
    let wires = open(target, count).await?;
    time::sleep(REST).await;
    let memory = target.memory()?;
    let woken = Arc::new(AtomicUsize::new(0));
    let mut tasks = TaskGroup::new();
    for mut wire in wires {
        let id = wire.send(&fetch_of(&topic), 11).await?;
        let woken = woken.clone();
        tasks.spawn("fetch", async move {
            // An answer without the record is not counted, and so the count is never reached.
            let answer = wire.receive::<m::FetchRequest>(id, 11).await;
            let records = answer.ok().and_then(|answer| {
                let partition = answer.responses.first()?.partitions.first()?;
                Some(!partition.records.as_ref()?.is_empty())
            });
            woken.fetch_add(usize::from(records == Some(true)), Ordering::AcqRel);
        });
    }
    time::sleep(REST).await;
    let used = target.memory()?.saturating_sub(memory);
    let resting = target.watch().await?;
    ensure!(woken.load(Ordering::Acquire) == 0, "a fetch was answered without a record");
    let (processor, started) = (target.processor()?, time::now());
    writer.produce(&topic).await?;
    let written = started.elapsed();
    while woken.load(Ordering::Acquire) < count {
        if started.elapsed() > PATIENCE {
            bail!("{} of {count} fetches have the record", woken.load(Ordering::Acquire));
        }
        time::sleep(std::time::Duration::from_millis(2)).await;
    }
    let all = started.elapsed();
    let waking = target.processor()? - processor;
    tasks.join_all().await;
    writer.delete_topic(&topic).await?;
    Ok(json!({
        "fetches": count,
        "memory, MiB": used as f64 / 1_048_576.0,
        "memory of a fetch, KiB": used as f64 / 1024.0 / count as f64,
        "processor while parked, %": resting,
        "record acknowledged after, ms": written.as_secs_f64() * 1000.0,
        "last fetch has it after, ms": all.as_secs_f64() * 1000.0,
        "processor time of waking all, ms": waking * 1000.0,
    }))
}

fn fetch_of(topic: &str) -> m::FetchRequest {
    let wanted = m::fetch_request::FetchPartition { partition_max_bytes: 1 << 20, ..Default::default() };
    let topic = m::fetch_request::FetchTopic {
        topic: Text::from(topic),
        partitions: vec![wanted],
        ..Default::default()
    };
    m::FetchRequest {
        max_wait_ms: 240_000,
        min_bytes: 1,
        max_bytes: 50 << 20,
        session_epoch: -1,
        topics: vec![topic],
        ..Default::default()
    }
}
