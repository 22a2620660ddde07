-- ends of attempts: the job's own row has the last alone
CREATE TABLE attempts (
    job INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    ended INTEGER NOT NULL,
    -- what the job was then
    state TEXT NOT NULL,
    exit INTEGER,
    message TEXT,
    files INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    seconds REAL NOT NULL,
    PRIMARY KEY (job, number)
) STRICT, WITHOUT ROWID;
CREATE INDEX jobs_by_previous ON jobs (previous) WHERE previous IS NOT NULL;
