{S[i,j,k]->PE[i%8,j%8]}
{S[i,j,k]->T[floor(i/8),floor(j/8),i%8+j%8+k]}
