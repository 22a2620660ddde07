-- the names of the channels that were chosen for the job, a line each; NULL: those that are told of any job
ALTER TABLE jobs ADD COLUMN tell TEXT;
-- nobody could be told before, and nobody wants to hear of it now
DELETE FROM outbox;
-- what is in the outbox, once it is known who is to be told
CREATE TABLE deliveries (
    number INTEGER NOT NULL REFERENCES events (number) ON DELETE CASCADE,
    channel TEXT NOT NULL,
    dealt INTEGER NOT NULL,
    due INTEGER NOT NULL,
    tries INTEGER NOT NULL DEFAULT 0,
    state TEXT NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'delivered', 'given_up')),
    -- why the last try has failed
    error TEXT,
    PRIMARY KEY (number, channel)
) STRICT, WITHOUT ROWID;
CREATE INDEX deliveries_waiting ON deliveries (channel, due) WHERE state = 'waiting';
-- who hears of events of several stores knows them apart
CREATE TABLE store (id TEXT NOT NULL) STRICT;
INSERT INTO store VALUES (lower(hex(randomblob(8))));
