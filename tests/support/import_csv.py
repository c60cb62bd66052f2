"""What tests of several files share: import csv."""

from __future__ import annotations

FOREIGN = """\
run;t;q1;q1_des;dq1;tau1;gx;gy;gz;px;py;pz;w;x;y;z;vbat;note
7;0;10;11;60;100;180;0;0;1000;0;0;1;0;0;0;12.1;start
7;20;20;21;120;200;0;180;0;2000;0;0;1;0;0;0;12.0;
9;0;30;31;0;0;0;0;90;3000;0;0;1;0;0;0;11.9;
9;20;40;41;0;0;0;0;90;4000;0;0;1;0;0;0;11.8;
"""
